def draw(folder):
    pass
