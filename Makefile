# The target names that kubebuilder projects have. A target works, or it isn't here.
SHELL := /usr/bin/env bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

CARGO ?= cargo
KUBECTL ?= kubectl
TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)
BIN := $(TARGET_DIR)/debug
RELEASE := $(TARGET_DIR)/release
CRD := config/crd/bases/apps.sentry.io_apps.yaml

##@ General

.PHONY: help
help: ## Show this list.
	@awk 'BEGIN {FS = ":.*##"; printf "Usage: make \033[1mTARGET\033[0m\n"} \
	  /^[a-zA-Z_-]+:.*?##/ { printf "  \033[1m%-14s\033[0m %s\n", $$1, $$2 } \
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

##@ An existing cluster: make run KUBECONFIG=FILE

# Never the current context by default: the cluster must be named on the command line.
cluster = $(if $(filter command line,$(origin KUBECONFIG)),,$(error name the cluster: make $@ KUBECONFIG=FILE))

.PHONY: install
install: build ## Install the CRD, and the namespace that takes the audit records.
	$(cluster)$(KUBECTL) --kubeconfig=$(KUBECONFIG) apply --server-side -f $(CRD) -f config/manager/namespace.yaml

.PHONY: run
run: build ## Run the operator on this machine, against that cluster.
	$(cluster)$(BIN)/kubesentry run --kubeconfig=$(KUBECONFIG) --log-format=text

.PHONY: uninstall
uninstall: ## Delete all Apps while an operator runs, then the CRD.
	$(cluster)$(KUBECTL) --kubeconfig=$(KUBECONFIG) delete apps.apps.sentry.io --all --all-namespaces --timeout=180s
	$(KUBECTL) --kubeconfig=$(KUBECONFIG) delete -f $(CRD)
