# For NVIDIA GPUs (driver 580 or newer): docker build -t r1-recipes . && docker run --gpus all --ipc host --stop-timeout 300 \
#   -v "$PWD/outputs:/work/outputs" r1-recipes r1-recipes grpo recipes/gsm8k_qwen05b_fast.yaml
# Training is the container's first process so, and saves a checkpoint on Ctrl-C and `docker stop`. accelerate launch would pass neither on.
FROM python:3.12-slim-bookworm
# A compiler and headers: vLLM and Triton compile kernels at the first start. bubblewrap: programs that a model writes.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends build-essential bubblewrap git && rm -rf /var/lib/apt/lists/*
WORKDIR /work
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
COPY recipes recipes
COPY accelerate_configs accelerate_configs
RUN pip install --no-cache-dir -c constraints.txt -e '.[vllm,wandb,tensorboard]'
ENV HF_HUB_DISABLE_TELEMETRY=1 PYTHONUNBUFFERED=1
CMD ["r1-recipes", "--help"]
