"""Judging the predictor against published measurements."""
