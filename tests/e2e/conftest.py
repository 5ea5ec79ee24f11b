"""What the tests with real weights share."""
