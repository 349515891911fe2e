import subprocess
import sys

program = "import time\nwhile True:\n    print('line', flush=True)\n    time.sleep(0.05)"
source = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
while True:
    line = source.stdout.readline()  # planted
    if not line:
        break
