"""The whole flow: a recipe opened as a job, its parts made once, and what commands do with them."""
