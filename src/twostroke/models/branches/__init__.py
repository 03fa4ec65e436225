"""What a layer is put together from: one file per kind of branch, behind the seam in `base`."""
