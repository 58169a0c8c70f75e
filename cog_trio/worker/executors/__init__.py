"""How user code is run: sync, asyncio, trio."""
