"""The tests of rota."""
