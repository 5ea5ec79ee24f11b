# For NVIDIA GPUs (driver 580 or newer): docker build -t r1-recipes . && docker run --gpus all --ipc host --stop-timeout 300 \
#   -v "$PWD/outputs:/work/outputs" r1-recipes r1-recipes grpo recipes/gsm8k_qwen05b.yaml
# For two CPU cores: docker build --build-arg EXTRAS=demo -t r1-recipes-cpu . && docker run -v "$PWD/outputs:/work/outputs" r1-recipes-cpu r1-recipes demo
# Training is the container's first process so, and saves a checkpoint on Ctrl-C and `docker stop`. accelerate launch would pass neither on.
FROM python:3.12-slim-bookworm
ARG EXTRAS=vllm,wandb,tensorboard
# bubblewrap: programs that a model writes. A compiler and headers: vLLM and Triton compile kernels at the first start.
# hadolint ignore=DL3008,SC2046
RUN apt-get update && apt-get install -y --no-install-recommends bubblewrap git \
    $(case "$EXTRAS" in *vllm*) echo build-essential ;; esac) && rm -rf /var/lib/apt/lists/*
WORKDIR /work
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
COPY recipes recipes
COPY accelerate_configs accelerate_configs
# Without vLLM, PyTorch's build for CPUs: the registry's is for NVIDIA GPUs and several GB larger.
RUN case "$EXTRAS" in *vllm*) ;; *) pip install --no-cache-dir "$(grep '^torch==' constraints.txt)" --index-url https://download.pytorch.org/whl/cpu ;; esac \
    && pip install --no-cache-dir -c constraints.txt -e ".[$EXTRAS]"
ENV HF_HUB_DISABLE_TELEMETRY=1 PYTHONUNBUFFERED=1
CMD ["r1-recipes", "--help"]
