"""The whole protocol in plain Python, under a scheduler that wishes it ill."""
