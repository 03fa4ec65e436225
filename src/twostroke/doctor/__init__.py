"""What binds a server, which flag would help, and the proof by replaying its own traffic."""
