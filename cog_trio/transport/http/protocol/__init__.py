"""HTTP on sockets: listeners, TLS, connections, HTTP/1.1 and HTTP/2, for any ASGI app."""
