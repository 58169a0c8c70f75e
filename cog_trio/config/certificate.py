"""The certificate and its key: from two PEM files to what TLS needs, or to one line that says what is wrong."""

from __future__ import annotations

import ssl
from typing import Final

PROTOCOLS: Final = ("h2", "http/1.1")  # offered to clients (ALPN), the best first
_ENCRYPTED: Final = (b"-----BEGIN ENCRYPTED PRIVATE KEY-----", b"Proc-Type: 4,ENCRYPTED")


class BadCertificate(ValueError):
    """The files can't be used; the text is one line for the user, and shows nothing of what is in them."""


def make_context(certfile: str, keyfile: str) -> ssl.SSLContext:
    """A server's context: TLS 1.2 and later, HTTP/2 and HTTP/1.1. It reads files, so it may take a while.

    Raises:
      BadCertificate: a file can't be read or is of another kind, or key and certificate do not belong together.
    """
    if b"-----BEGIN CERTIFICATE-----" not in _read("--certfile", certfile):
        raise BadCertificate(f"--certfile: {certfile} holds no certificate in PEM")
    key = _read("--keyfile", keyfile)
    if any(mark in key for mark in _ENCRYPTED):
        raise BadCertificate(f"--keyfile: the key in {keyfile} is encrypted; store it without a passphrase")
    if b"PRIVATE KEY-----" not in key:
        raise BadCertificate(f"--keyfile: {keyfile} holds no private key in PEM")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(list(PROTOCOLS))
    try:
        context.load_cert_chain(certfile, keyfile, password=lambda: b"")  # else OpenSSL would ask on the terminal
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise BadCertificate(f"--keyfile: {keyfile} is not the key of the certificate in {certfile}") from error
        raise BadCertificate(f"--certfile, --keyfile: can't use {certfile} with {keyfile}: {reason(error)}") from error
    except OSError as error:  # gone or locked since it was read
        raise BadCertificate(f"--certfile, --keyfile: can't read them: {reason(error)}") from error
    return context


def renew_context(context: ssl.SSLContext, certfile: str, keyfile: str) -> None:
    """Have a context use what the files hold now, for handshakes to come. ``make_context`` has found them good."""
    context.load_cert_chain(certfile, keyfile, password=lambda: b"")


def _read(flag: str, path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(2**20)
    except OSError as error:
        raise BadCertificate(f"{flag}: can't read {path}: {reason(error)}") from error


def reason(error: OSError) -> str:
    """What is wrong with a file of certificates, in words: no numbers, and not where in OpenSSL it was found."""
    if isinstance(error, ssl.SSLError):
        return (error.reason or "unknown").lower().replace("_", " ")
    return error.strerror or str(error)
