"""How clients reach the service: HTTP and WebSockets."""
