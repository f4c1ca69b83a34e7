# The target names that kubebuilder projects have. A target works, or it isn't here.
SHELL := /usr/bin/env bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

CARGO ?= cargo
CONTAINER_TOOL ?= docker
TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)
BIN := $(TARGET_DIR)/debug
RELEASE := $(TARGET_DIR)/release
CRD := config/crd/bases/apps.sentry.io_apps.yaml
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)

# The kubectl of the lab's version, found or built: what is generated must not depend on the machine.
LAB_KUBECTL = $(shell $(BIN)/sentry-lab assets | while IFS= read -r folder; do \
  if [ -x "$$folder/kubectl" ]; then echo "$$folder/kubectl"; fi; done)
KUBECTL_HERE := $(shell command -v kubectl)
KUBECTL ?= $(or $(KUBECTL_HERE),$(LAB_KUBECTL))
# Without a kubectl the lab's is taken, which takes the lab.
needs_kubectl := $(if $(KUBECTL_HERE)$(filter command line,$(origin KUBECTL)),,build)

##@ General

.PHONY: help
help: ## Show this list.
	@awk 'BEGIN {FS = ":.*##"; printf "Usage: make \033[1mTARGET\033[0m\n"} \
	  /^[a-zA-Z_-]+:.*?##/ { printf "  \033[1m%-16s\033[0m %s\n", $$1, $$2 } \
	  /^##@/ { printf "\n%s\n", substr($$0, 5) }' $(MAKEFILE_LIST) | { if [ -t 1 ]; then cat; else sed 's/\x1b\[[0-9;]*m//g'; fi; }

##@ Try it

.PHONY: demo
demo: build ## Bring up a real control plane and watch the operator at work; each claim is checked.
	@$(BIN)/sentry-lab demo

.PHONY: doctor
doctor: build ## Say what this machine lacks for the demo and the tests, and how to get it.
	@$(BIN)/sentry-lab doctor

##@ Development

.PHONY: manifests
manifests: build ## Generate the CRD and the reference page of conditions.
	@mkdir -p $(dir $(CRD)) docs/reference
	$(BIN)/kubesentry manifests crd > $(CRD)
	$(BIN)/kubesentry manifests conditions > docs/reference/conditions.md

.PHONY: fmt
fmt: ## Format the code.
	$(CARGO) fmt --all

.PHONY: lint
lint: ## Check format and lints, warnings denied.
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings

.PHONY: build
build: ## Build the programs: kubesentry and sentry-lab.
	@$(CARGO) build --locked --workspace --bins

.PHONY: test-fast
test-fast: ## Run the tests that need no control plane; seconds once built.
	$(CARGO) test --locked --workspace --lib --bins
	$(CARGO) test --locked -p kubesentry-api --test 'pure_*'
	$(CARGO) test --locked -p kubesentry-operator --test 'pure_*'

.PHONY: test
test: build ## Run all tests, against a real etcd and kube-apiserver that are built once.
	$(CARGO) test --locked --workspace --no-run
	$(BIN)/sentry-lab test -- $(CARGO) test --locked --workspace

.PHONY: bench
bench: ## Measure how fast a hand-made change is put back (release build).
	$(CARGO) build --locked --release --workspace --bins
	@$(RELEASE)/sentry-lab bench drift

.PHONY: clean
clean: ## Remove what was built here; the control plane's cache stays.
	$(CARGO) clean

##@ Package

# Of the machine that builds. glibc, since it is what rustup installs by itself.
STATIC_TARGET ?= $(shell uname -m)-unknown-linux-gnu
STATIC_PROFILE ?= release
STATIC := $(TARGET_DIR)/$(STATIC_TARGET)/$(STATIC_PROFILE)/kubesentry
IMG ?= kubesentry:$(VERSION)

.PHONY: build-installer
build-installer: build ## Write all of config/default into one file, dist/install.yaml.
	@mkdir -p dist
	@{ echo "# Generated from config/default by \`make build-installer\`; do not edit."; "$(LAB_KUBECTL)" kustomize config/default; } > $(TARGET_DIR)/install.yaml
	@mv $(TARGET_DIR)/install.yaml dist/install.yaml

# --target, though it is this machine's: without one the flag would reach procedural macros too, which can't be static.
.PHONY: static
static: ## Build the operator as a static binary that needs nothing from the image it is put in.
	RUSTFLAGS='-C target-feature=+crt-static' $(CARGO) build --locked --profile $(STATIC_PROFILE) --target $(STATIC_TARGET) -p kubesentry-operator --bin kubesentry
	@echo $(STATIC)

.PHONY: check-static
check-static: build static ## Check that it is static, and run it in an empty folder against a cluster found by DNS (as root).
	$(CARGO) test --locked --workspace --test live_static --no-run
	KUBESENTRY_STATIC="$(abspath $(STATIC))" $(BIN)/sentry-lab test -- $(CARGO) test --locked --workspace --test live_static -- --ignored

.PHONY: docker-build
docker-build: ## Build the image IMG.
	$(CONTAINER_TOOL) build --build-arg VERSION=$(VERSION) --tag $(IMG) .

##@ An existing cluster: make run KUBECONFIG=FILE

# Never the current context by default: the cluster must be named on the command line.
# An empty name is none: kubectl would take it for the default.
cluster = $(if $(and $(filter command line,$(origin KUBECONFIG)),$(strip $(KUBECONFIG))),,$(error name the cluster: make $@ KUBECONFIG=FILE))

FLAGS =

.PHONY: install
install: build ## Install the CRD, and the namespace that takes the audit records.
	$(cluster)$(KUBECTL) --kubeconfig=$(KUBECONFIG) apply --server-side -f $(CRD) -f config/manager/namespace.yaml

.PHONY: run
run: build ## Run the operator on this machine, against that cluster.
	$(cluster)$(BIN)/kubesentry run --kubeconfig=$(KUBECONFIG) --log-format=text

.PHONY: uninstall
uninstall: $(needs_kubectl) ## Delete all Apps while an operator runs, then the CRD. FLAGS: see tools/undeploy.sh.
	@$(cluster)KUBECTL="$(KUBECTL)" tools/undeploy.sh --kubeconfig "$(KUBECONFIG)" $(FLAGS)

# What is installed: this folder, config/namespaced, or an overlay of either. From the command line only, as the cluster.
CONFIG = config/default

.PHONY: deploy
deploy: $(needs_kubectl) ## Install everything, the operator with the image IMG. CONFIG names another folder than config/default.
	$(cluster)$(KUBECTL) kustomize $(CONFIG) | sed 's|image: kubesentry:$(VERSION)$$|image: $(IMG)|' | \
	  $(KUBECTL) --kubeconfig=$(KUBECONFIG) apply --server-side -f -

.PHONY: undeploy
undeploy: $(needs_kubectl) ## Remove everything: Apps and their Pods, then the CRD, then the operator. FLAGS: see tools/undeploy.sh.
	@$(cluster)KUBECTL="$(KUBECTL)" tools/undeploy.sh --kubeconfig "$(KUBECONFIG)" --config "$(CONFIG)" $(FLAGS)
