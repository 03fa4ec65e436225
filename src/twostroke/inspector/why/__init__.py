"""Why a server is as fast as it is: who waited for what, and what bounds it."""
