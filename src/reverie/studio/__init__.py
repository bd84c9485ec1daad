"""The studio: a page in the browser on which runs are watched, drawn from, steered and understood."""
