"""The whole stack as a user starts it, judged by the clients that users have."""
