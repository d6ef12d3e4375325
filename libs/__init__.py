"""Libraries that every service may import; they import no service."""
