"""The import name `cog`: replaces itself by `cog_trio.sdk`, see `cog_trio._alias`."""

from cog_trio._alias import install

install()
