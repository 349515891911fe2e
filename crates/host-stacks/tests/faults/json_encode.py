import json

data = [{"token": i, "text": "é" * 20, "logprob": -i / 3} for i in range(5000)]
while True:
    text = json.dumps(data)  # planted
