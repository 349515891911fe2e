import subprocess

while True:
    subprocess.call(["sleep", "0.3"])  # planted
