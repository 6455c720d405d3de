"""Images that nobody took, and learning to see from them: public, at no cost in privacy."""
