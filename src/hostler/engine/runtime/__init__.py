"""The machinery that all features of the engine share. No feature is named here."""
