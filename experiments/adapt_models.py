MODELS={}; SIZES=[]
def adapted(name, seed): return {}
