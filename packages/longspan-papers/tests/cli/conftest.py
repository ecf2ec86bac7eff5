from command_fixtures import document, refused

__all__ = ["document", "refused"]
