"""Remote retrieval over HTTP: client, protocol and load balancer."""
