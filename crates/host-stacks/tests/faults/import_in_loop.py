import sys

while True:
    for name in [name for name in sys.modules if name.split(".")[0] in ("xml", "email", "difflib")]:
        del sys.modules[name]
    import difflib, email.message, xml.dom.minidom  # planted
