"""Fitted models: a schema of the data, a flow, and how both were made."""
