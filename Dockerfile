# vlrl in a container. A CPU's:  docker build -t vlrl .
# A GPU's (CUDA 13.0; the driver and nvidia-container-toolkit are the host's):
#   docker build -t vlrl:cuda --build-arg TORCH=cu130 --build-arg EXTRAS=train,hub,math,lowbit .
#   docker run --gpus all --ipc=host -v $PWD:/here vlrl:cuda accept MODEL --data clicks.jsonl
# Not yet built or run: no container engine and no GPU were at hand. tests/test_release.py holds what it names.
FROM python:3.12-slim-bookworm

ARG TORCH=cpu
ARG EXTRAS=train,hub,math
ENV UV_NO_CACHE=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONUNBUFFERED=1 HF_HOME=/here/.cache/huggingface

# opencv-python draws with the first two; models with Triton kernels compile small C files
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libgl1 libglib2.0-0 gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/vlrl
COPY requirements.lock ./
# torch alone first: built for what is asked for, in the lock's version, and in a layer of its own
RUN pip install uv \
    && grep -E '^(torch|torchvision)==' requirements.lock > torch.lock \
    && uv pip install --system --torch-backend "$TORCH" --requirement torch.lock

COPY pyproject.toml README.md LICENSE NOTICE.md MANIFEST.in ./
COPY configs configs
COPY rewards rewards
COPY tasks tasks
COPY robot robot
COPY vlrl vlrl
RUN uv pip install --system --torch-backend "$TORCH" --constraint requirements.lock ".[$EXTRAS]" && vlrl --version

WORKDIR /here
ENTRYPOINT ["vlrl"]
CMD ["--help"]
