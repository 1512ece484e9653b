# Stepladder in a container, for a CPU or for NVIDIA GPUs. The image holds code and the small built-in models; models, data
# and runs live in /work, a folder of yours:
#
#     docker build --target cpu --tag stepladder:cpu .
#     docker run --rm --volume "$PWD:/work" stepladder:cpu run prorag-nano --out runs/nano
#
#     docker build --target gpu --tag stepladder:gpu .
#     docker run --rm --gpus all --volume "$PWD:/work" stepladder:gpu doctor
#
# The process runs as user 1000; `--user "$(id -u):$(id -g)"` writes files as you. Pass keys and tokens at run time
# (`--env OPENAI_API_KEY`), never at build time: layers keep them.

ARG PYTHON_IMAGE=python:3.12.13-slim-bookworm

# --- the wheel -------------------------------------------------------------------------------------------------------
FROM ${PYTHON_IMAGE} AS wheel
WORKDIR /source
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
COPY recipes recipes
RUN pip wheel --no-cache-dir --no-deps --constraint constraints.txt --wheel-dir /wheels .

# --- what both images share ------------------------------------------------------------------------------------------
FROM ${PYTHON_IMAGE} AS base
ENV HOME=/home/stepladder \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    PYTHONUNBUFFERED=1
RUN useradd --uid 1000 --create-home --home-dir /home/stepladder stepladder \
    && chmod 1777 /home/stepladder \
    && install --directory --owner=stepladder --group=stepladder /work
COPY constraints.txt /opt/stepladder/constraints.txt
COPY --from=wheel /wheels /opt/stepladder/wheels
WORKDIR /work
ENTRYPOINT ["stepladder"]
CMD ["doctor"]

# --- GPU: PyTorch from PyPI brings CUDA's libraries; Triton compiles kernels with gcc ---------------------------------
FROM base AS gpu
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
ARG EXTRAS=vllm,dense,documents,gguf,mcp
RUN wheel="$(echo /opt/stepladder/wheels/stepladder-*.whl)" \
    && pip install --constraint /opt/stepladder/constraints.txt "${wheel}[${EXTRAS}]"
USER 1000

# --- CPU (last: what `docker build .` makes) --------------------------------------------------------------------------
FROM base AS cpu
ARG EXTRAS=dense,documents,gguf,mcp
RUN wheel="$(echo /opt/stepladder/wheels/stepladder-*.whl)" \
    && pip install --extra-index-url https://download.pytorch.org/whl/cpu \
       --constraint /opt/stepladder/constraints.txt "${wheel}[${EXTRAS}]"
USER 1000
