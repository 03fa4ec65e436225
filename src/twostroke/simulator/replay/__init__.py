"""What a server did, done again under other settings: requests and step times from its steps."""
