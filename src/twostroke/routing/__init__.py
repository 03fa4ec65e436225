"""Which replica serves a request: pure routers, shared by the gateway and the simulator."""
