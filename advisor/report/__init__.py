"""Terminal, Markdown, HTML and JSON renderings."""
