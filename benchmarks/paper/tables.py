def report(folder):
    pass
