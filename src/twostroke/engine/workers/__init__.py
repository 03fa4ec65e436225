"""Engines that listen on TCP, and the front end's way to them."""
