"""What the pages of deployments show, one module a page or a part of one: rows in, words and numbers out.

Nothing is decided or written here.
"""
