"""Products in few bits, experts' grouped products and latent attention, as others measured them."""
