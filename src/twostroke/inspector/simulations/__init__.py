"""Small simulations that the page asks for."""
