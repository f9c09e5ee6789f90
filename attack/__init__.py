"""Attacks on the whole product from outside: real processes, every route, function, page and link."""
