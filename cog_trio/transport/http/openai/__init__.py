"""The HTTP API of OpenAI for text models, off unless ``--openai`` asks for it."""
