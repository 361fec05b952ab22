# SPDX-License-Identifier: Apache-2.0
#
# A fresh machine needs Go, a C compiler and make; every target sets up the rest itself.

SHELL      := /bin/bash
# The tag of the images is the chart's appVersion, so that the chart of this checkout finds them; make chart writes it to
# the kustomize base. VERSION=… is another tag.
CHART_TAG  := $(shell sed -n 's/^appVersion: *\([^ ]*\).*/\1/p' deploy/chart/Chart.yaml)
TAG        := $(if $(filter command environment,$(origin VERSION)),$(VERSION),$(CHART_TAG))
VERSION    ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
REVISION   := $(shell git rev-parse HEAD 2>/dev/null)
BUILDINFO  := github.com/gpupilot/gpupilot/internal/base/buildinfo
LDFLAGS    := -s -w -X $(BUILDINFO).version=$(VERSION) -X $(BUILDINFO).commit=$(REVISION)
GO_FILES   := $(shell find api cmd internal -name '*.go' -not -name '*_test.go' 2>/dev/null) go.mod go.sum internal/loadgen/load/kernels.ptx.tmpl $(shell find internal/serve/webui/static -type f 2>/dev/null)
TEST_FILES := $(shell find test -name '*.go' -not -path 'test/kube/*' -not -path 'test/knative/*' -not -path 'test/chart/*' 2>/dev/null)
FAKES      := bin/libnvidia-ml-fake.so bin/libnvidia-ml-fake-old.so bin/libdcgm-fake.so bin/libcuda-fake.so
PROGRAMS   := bin/gpupilot bin/gpupilot-agent bin/gpupilot-controller
# The arm64 agent needs Debian's gcc-aarch64-linux-gnu. Without it, its tests are skipped.
ARM64_CC   := aarch64-linux-gnu-gcc
ARM64_TEST := $(if $(shell command -v $(ARM64_CC)),bin/arm64/gpupilot-agent bin/arm64/libnvidia-ml-fake.so bin/arm64/libdcgm-fake.so)

GOLANGCI   := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
# gotestsum counts tests and lists the skipped ones with the reason.
GOTESTSUM  := gotest.tools/gotestsum@v1.13.0
# actionlint checks the workflows in .github.
ACTIONLINT := github.com/rhysd/actionlint/cmd/actionlint@v1.7.7
CONTROLLER_GEN := sigs.k8s.io/controller-tools/cmd/controller-gen@v0.23.0

export GPUPILOT_KUBE = $(CURDIR)/bin/kube
# With these tags net and os/user are the same with and without cgo, and debugging information takes a sixth of the
# compiler's time: so the programs, the tests and the control plane share what the compiler made of their common packages.
# -trimpath would divide it again: only releases have it.
TAGS := netgo,osusergo
E2E  := $(TAGS),e2e
ifeq ($(MAKELEVEL),0)
export GOFLAGS := $(GOFLAGS) -tags=$(TAGS) -gcflags=all=-dwarf=false
endif
# go-nvml wraps calls that NVIDIA has deprecated. Old drivers still need them.
export CGO_CFLAGS ?= -O2 -g -Wno-deprecated-declarations

.PHONY: all arm64 missing-compilers images load packages archives demo test test-all hardware soak soak-controller sweep peers bench compat lint generate chart fakes kube keda clean
all: $(PROGRAMS) ## the three programs, in bin/

# load gpu calls libcuda, which needs glibc. The static CLI contains the program that does, and starts it from memory.
WORKERS    := internal/loadgen/load/worker/embedded
$(WORKERS)/%/gpuworker: $(GO_FILES)
	GOOS=linux GOARCH=$* CGO_ENABLED=0 go build -trimpath -tags $(TAGS),gpuworker -ldflags '$(LDFLAGS)' -o $@ ./cmd/gpupilot/gpuworker
# The architecture of a platform's worker: none for macOS.
worker_of   = $(if $(findstring darwin,$(1)),,$(WORKERS)/$(lastword $(subst -, ,$(1)))/gpuworker)

bin/gpupilot: $(GO_FILES) $(call worker_of,$(shell go env GOOS)-$(shell go env GOARCH))
	CGO_ENABLED=0 go build -ldflags '$(LDFLAGS)' -o $@ ./cmd/gpupilot
# The agent links dlopen only: no NVIDIA library is needed to build or to start it.
bin/gpupilot-agent: $(GO_FILES)
	CGO_ENABLED=1 go build -ldflags '$(LDFLAGS)' -o $@ ./cmd/gpupilot-agent
bin/gpupilot-controller: $(GO_FILES)
	CGO_ENABLED=0 go build -ldflags '$(LDFLAGS)' -o $@ ./cmd/gpupilot-controller
bin/gpupilot-demo: $(GO_FILES) $(TEST_FILES)
	CGO_ENABLED=0 go build -ldflags '$(LDFLAGS)' -o $@ ./test/demo
bin/gpupilot-bench: $(GO_FILES) $(TEST_FILES)
	CGO_ENABLED=0 go build -ldflags '$(LDFLAGS)' -o $@ ./test/bench

arm64: bin/arm64/gpupilot bin/arm64/gpupilot-agent bin/arm64/gpupilot-controller ## the three programs for arm64, in bin/arm64/
bin/arm64/gpupilot-agent: $(GO_FILES)
	GOARCH=arm64 CGO_ENABLED=1 CC=$(ARM64_CC) go build -trimpath -ldflags '$(LDFLAGS)' -o $@ ./cmd/gpupilot-agent
bin/arm64/gpupilot: $(WORKERS)/arm64/gpuworker
bin/arm64/gpupilot bin/arm64/gpupilot-controller: bin/arm64/%: $(GO_FILES)
	GOARCH=arm64 CGO_ENABLED=0 go build -trimpath -ldflags '$(LDFLAGS)' -o $@ ./cmd/$*
bin/arm64/libnvidia-ml-fake.so: $(wildcard test/fakes/nvml/*) test/fakes/scenario.h test/fakes/shared.h
	$(MAKE) -C test/fakes/nvml BIN=$(CURDIR)/bin/arm64 CC=$(ARM64_CC)
bin/arm64/libdcgm-fake.so: $(wildcard test/fakes/dcgm/*) test/fakes/scenario.h test/fakes/shared.h
	$(MAKE) -C test/fakes/dcgm BIN=$(CURDIR)/bin/arm64 CC=$(ARM64_CC)

# The architectures of the images. Another architecture than this machine's needs a cross compiler for the agent (Debian's gcc-aarch64-linux-gnu).
ARCH      ?= amd64 arm64
CC_amd64  := x86_64-linux-gnu-gcc
CC_arm64  := $(ARM64_CC)
HAVE_CC    = $(foreach arch,$(ARCH),$(if $(shell command -v $(CC_$(arch))),$(arch)))
# Every file in a release has the commit's time.
RELEASE    = SOURCE_DATE_EPOCH=$${SOURCE_DATE_EPOCH:-$$(git log -1 --format=%ct 2>/dev/null || echo 0)}

# The programs for images and packages are in bin/images/linux-ARCH. go build builds only what has changed.
.SECONDEXPANSION:
release-static-%: $$(call worker_of,$$*)
	@mkdir -p bin/images/linux-$*
	GOOS=linux GOARCH=$* CGO_ENABLED=0 go build -trimpath -ldflags '$(LDFLAGS)' -o bin/images/linux-$*/ ./cmd/gpupilot ./cmd/gpupilot-controller
release-agent-%:
	@mkdir -p bin/images/linux-$*
	GOOS=linux GOARCH=$* CGO_ENABLED=1 CC=$(CC_$*) go build -trimpath -ldflags '$(LDFLAGS)' -o bin/images/linux-$*/ ./cmd/gpupilot-agent
release-cli-%: $$(call worker_of,$$*)
	@mkdir -p bin/archives/$*
	GOOS=$(firstword $(subst -, ,$*)) GOARCH=$(lastword $(subst -, ,$*)) CGO_ENABLED=0 go build -trimpath -ldflags '$(LDFLAGS)' -o bin/archives/$*/ ./cmd/gpupilot
missing-compilers:
	@$(foreach arch,$(filter-out $(HAVE_CC),$(ARCH)),echo "nothing is built for $(arch): its C compiler $(CC_$(arch)) is missing";)

images: missing-compilers $(HAVE_CC:%=release-static-%) $(HAVE_CC:%=release-agent-%) ## OCI image archives of the three programs, bin/images/*.tar, without Docker; ARCH=amd64 for one architecture
	@cd deploy/release && $(RELEASE) go run ./cmd/images -tag '$(TAG)' -version '$(VERSION)' -revision '$(REVISION)' -arch '$(HAVE_CC)'

load: ## load bin/images/*.tar into the containerd, k3s, kind or minikube of this machine; INTO=kind chooses one
	@bash deploy/release/load.sh bin/images $(INTO)

packages: missing-compilers $(HAVE_CC:%=release-agent-%) ## the agent as deb and rpm, in bin/packages/
	@cd deploy/release && $(RELEASE) go run ./cmd/packages -version '$(VERSION)' -arch '$(HAVE_CC)'

PLATFORMS ?= linux-amd64 linux-arm64 darwin-amd64 darwin-arm64
archives: $(PLATFORMS:%=release-cli-%) ## the CLI for Linux and macOS with checksums and krew's manifest, in bin/archives/
	@cd deploy/release && $(RELEASE) go run ./cmd/archives -version '$(VERSION)' -platforms '$(PLATFORMS)'

fakes: $(FAKES)
bin/libnvidia-ml-fake.so bin/libnvidia-ml-fake-old.so &: $(wildcard test/fakes/nvml/*) test/fakes/scenario.h test/fakes/shared.h
	$(MAKE) -C test/fakes/nvml BIN=$(CURDIR)/bin
bin/libdcgm-fake.so: $(wildcard test/fakes/dcgm/*) test/fakes/scenario.h test/fakes/shared.h
	$(MAKE) -C test/fakes/dcgm BIN=$(CURDIR)/bin
bin/libcuda-fake.so: $(wildcard test/fakes/cuda/*) test/fakes/scenario.h test/fakes/shared.h
	$(MAKE) -C test/fakes/cuda BIN=$(CURDIR)/bin

kube: ## the real control plane of the demo and the tests: 5 to 8 minutes once per machine (two idle cores), then cached by content
	@bash test/kube/build.sh

ifdef INSTALL
demo: kube all fakes ## the whole chain on this machine; DEMO_SECONDS=N ends it, LOAD=FILE SPEED=n replays a load, INSTALL=1 installs the chart on a real node
	@$(MAKE) --no-print-directory images ARCH=$$(go env GOARCH)
	@set -o pipefail; cd test/chart && GPUPILOT_REQUIRE_REALNODE=1 go test -count=1 -tags $(E2E) -timeout 10m -run '^TestInstallNode$$' -v . -show | \
		sed -un -e 's/^ *[a-z0-9_]*_test\.go:[0-9]*: //p' -e '/^\(ok\|FAIL\|panic\)/p'
else
demo:
	@$(MAKE) --no-print-directory -j2 kube all bin/gpupilot-demo # our programs are built while Kubernetes is
	@exec bin/gpupilot-demo
endif

# What a test program is linked without takes a quarter of the linker's time; make lint vets.
QUICK := -vet=off -ldflags=-w

# The arguments of a test run: a name, flags and packages, and the folder of another module. bin/tests/NAME.json has the test report.
define go_test
@mkdir -p bin/tests
$(if $(3),cd $(3) && )go run $(GOTESTSUM) --format pkgname-and-test-fails --format-hide-empty-pkg --hide-summary skipped --jsonfile $(CURDIR)/bin/tests/$(1).json -- $(2)
endef
# How many tests ran since the target began, and the skipped ones with the reason.
count_tests = go run $(GOTESTSUM) --raw-command --format standard-quiet -- cat bin/tests/*.json | sed -n '/^=== Skipped/,$$p; /^DONE/p' | uniq

# Every test without a build tag: unit and property tests, the documentation, and test/journeys on a real control plane.
test: all fakes ## the tests that tell whether the product works: units, and the main journeys on a real control plane (KUBERNETES=v1.34.12 for another one)
	@$(MAKE) --no-print-directory kube
	@rm -rf bin/tests
	$(call go_test,test,-p 3 $(QUICK) -timeout 30m ./test/... ./...)
	@$(count_tests)

# Everything else: the race detector, and what has the build tag e2e or is a module of its own.
test-all: all fakes bin/lws $(ARM64_TEST) ## every test that make test does not run, and its unit tests again under the race detector
	@$(MAKE) --no-print-directory kube
	@rm -rf bin/tests
	$(call go_test,race,-race $(QUICK) -timeout 30m ./...)
	@$(MAKE) --no-print-directory -j2 --output-sync test-modules test-e2e
	@$(MAKE) --no-print-directory -j2 --output-sync test-install test-release
	@$(count_tests)

.PHONY: test-modules test-e2e test-install test-release
test-modules:
	$(call go_test,godcgm,-race ./...,test/godcgm)
	$(call go_test,monitoring,./...,deploy/monitoring)
	$(call go_test,chart,./...,test/chart)

# A package has a control plane of its own and takes half a core: four of them keep two cores busy, and more take as long.
test-e2e: export GPUPILOT_KEDA ?= $(shell bash test/keda/build.sh --built)
test-e2e:
	$(call go_test,e2e,-count=1 -p 4 -tags $(E2E) $(QUICK) -timeout 30m ./test/e2e/...)
bin/lws: test/lws/go.mod test/lws/go.sum
	cd test/lws && CGO_ENABLED=0 go build -o $(CURDIR)/$@ sigs.k8s.io/lws/cmd

# The installation waits for a node for most of its time.
test-release:
	$(call go_test,release,-count=1 ./...,deploy/release)
test-install:
	@$(MAKE) --no-print-directory images ARCH=$$(go env GOARCH) || echo 'no images: the test that runs them on a node is left out'
	$(call go_test,install,-count=1 -tags $(E2E) -timeout 15m -run Install ./...,test/chart)

hardware: all ## gpupilot load on the GPU of this machine, in about eight minutes; writes test/hardware/RESULTS.md, and goes on where it was interrupted
	go run ./test/hardware

SOAK ?= 10m
soak: all fakes ## the agent under a series of failures, for SOAK (10m)
	go test -count=1 -v -tags $(E2E) -timeout 24h ./test/e2e/soak -soak $(SOAK)

NODES ?= 1000
soak-controller: kube all ## the controller on NODES (1000) simulated nodes that churn, for SOAK (10m)
	go test -count=1 -v -tags $(E2E) -timeout 48h ./test/e2e/fleet -soak $(SOAK) -nodes $(NODES)

TRANSITIONS ?= 3000
EPISODES    ?= 150
SEED        ?= 1
sweep: kube all ## every field of the CRDs and of the chart's values set, changed, removed, every call of the controller to the API server disturbed, pairs of features under faults, slow readers at every route, hostile values in every command and view: three hours; as root also 200 drains on a real node: another; TRANSITIONS=0 for every value, EPISODES=n, SEED=n
	go test -count=1 -v -timeout 2h -run HostileFields ./cmd/gpupilot ./internal/autoscaler/controller ./internal/serve/metricquery ./internal/serve/webui ./internal/terminal/mcp -hostile 0
	go test -count=1 -v -tags $(E2E) -timeout 8h ./test/e2e/sweep -transitions $(TRANSITIONS) -rounds 0 -episodes $(EPISODES) -within 10s -seed $(SEED)
	go test -count=1 -v -tags $(E2E) -timeout 3h ./test/e2e/readers -pairs 0 -reactions 3 -seed $(SEED)
	cd test/chart && go test -count=1 -v -timeout 1h -run TestEveryValueRenders . -sweep 0 -seed $(SEED)
	go test -count=1 -v -tags $(E2E) -timeout 4h -run '^TestDrainNode$$' ./test/e2e/realnode -drains 200 -longest 90s

SEQUENCES ?= 1000
peers: ## compare the backtest's models of the HPA and the Knative autoscaler with the real ones; UPDATE=1 records the results
	go test -count=1 -v -timeout 1h -run 'TestHPAIs|TestKPAIs' ./internal/scale/peers -args -ask -sequences $(SEQUENCES) $(if $(UPDATE),-update)

keda: kube fakes all ## KEDA's own operator against the scaler, and under adopt and release: 25 CPU minutes once per machine to build KEDA
	GPUPILOT_KEDA=$$(bash test/keda/build.sh) go test -count=1 -v -tags $(E2E) -timeout 20m ./test/e2e/keda

bench: export OPTIMISED := 1 # a control plane that is compiled for speed, under its own hash
bench: kube all fakes bin/gpupilot-bench ## a table, also written to bin/bench.json, in an hour; ONLY=part runs one part: scrape, tick, memory, hang, reaction, freshness, fleet, fleet-controller, pods, promql, adapter, keda, labels, exporter, bars, arena; BENCH_FLAGS='-targets 10000'
	@exec bin/gpupilot-bench -out bin/bench.json $(if $(ONLY),-only '$(ONLY)') $(BENCH_FLAGS)

compat: ## the agent beside a dcgm-exporter: EXPORTER=/path/to/it [LIBDCGM_DIR=…] [COLLECTORS=…] [ARGS=-v]
ifndef EXPORTER
	@echo 'give the binary to compare with: make compat EXPORTER=/path/to/dcgm-exporter [LIBDCGM_DIR=/folder/of/libdcgm.so.4] [COLLECTORS=/its/default-counters.csv]'
else
	$(MAKE) bin/gpupilot-agent fakes
	go test -count=1 -v -tags $(TAGS) -timeout 1h -run TestBesideExporter ./test/compat -args -exporter '$(abspath $(EXPORTER))' \
		$(if $(LIBDCGM_DIR),-libdcgm '$(abspath $(LIBDCGM_DIR))') $(if $(COLLECTORS),-collectors '$(abspath $(COLLECTORS))') $(ARGS)
endif

lint:
	@files=$$(gofmt -l api cmd deploy internal test) && if [[ -n $$files ]]; then echo "not as gofmt has it: "$$files >&2; exit 1; fi
	go mod tidy -diff
	cd test/godcgm && go mod tidy -diff
	cd deploy/release && go mod tidy -diff && go vet ./...
	cd deploy/monitoring && go mod tidy -diff && go vet ./...
	cd test/chart && go mod tidy -diff
	cd test/lws && go mod tidy -diff
	go run $(ACTIONLINT) -shellcheck= -pyflakes=
	go run $(GOLANGCI) run --build-tags $(TAGS),e2e,gpu ./...

generate: ## deepcopy functions and CRDs from the API types, dashboards and alert rules, and their copies in the chart and the kustomize base
	@mkdir -p bin
	printf '// SPDX-License-Identifier: Apache-2.0\n' > bin/boilerplate.txt
	go run $(CONTROLLER_GEN) object:headerFile=bin/boilerplate.txt paths=./api/...
	go run $(CONTROLLER_GEN) crd:maxDescLen=300 paths=./api/... output:crd:dir=deploy/crds
	for f in deploy/crds/*.yaml; do awk -f deploy/crds.awk $$f >bin/crd.yaml && cat bin/crd.yaml >$$f || exit 1; done
	cd deploy/monitoring && go run .
	@$(MAKE) --no-print-directory chart

chart: ## the chart's copies of deploy/, its README and schema, and the kustomize base, which is the chart with its default values
	rm -rf deploy/chart/crds deploy/chart/files
	mkdir -p deploy/chart/files
	cp -R deploy/crds deploy/chart/crds
	cp deploy/chart/values.yaml deploy/chart/files/
	cp -R deploy/rbac deploy/admission deploy/node-health deploy/external-metrics deploy/agent-auth deploy/chart/files/
	cd test/chart && go test -count=1 -run 'TestKustomize|TestReadme|TestSchema' . -update

.PHONY: backtest backtest-quick
# The .1s files are counts from the .requests files, which have more detail.
TRACES         ?= ../shared/traces
UNTOUCHED      ?= mooncake,deepseek-r1.clients,UPS
TRACE_FILES     = $(filter-out %.1s.csv.gz,$(wildcard $(TRACES)/*.csv.gz))
comma          := ,
# The backtest refuses a part that no file name contains.
UNTOUCHED_HERE  = $(foreach part,$(subst $(comma), ,$(UNTOUCHED)),$(if $(findstring $(part),$(notdir $(TRACE_FILES))),--untouched $(part)))
BACKTEST        = bin/gpupilot backtest $(TRACE_FILES) $(UNTOUCHED_HERE) \
                  $(addprefix --prices ,$(wildcard $(TRACES)/prices/gpu_on_demand_prices.csv)) --peers-cache bin/peers.json -o html

# The flags of the study in docs/backtest.md.
BACKTEST_STUDY  = --peers published,llm --startup 2m,7m --replicas 8 --hours 2 --seeds 1

backtest: bin/gpupilot ## the engine on recorded load beside published settings and other LLM autoscalers, TRACES=directory; BACKTEST_FLAGS='--peers all' takes the whole grid, 15 minutes of CPU time more
	$(BACKTEST) $(BACKTEST_STUDY) --out bin/backtest.html $(BACKTEST_FLAGS)

backtest-quick: bin/gpupilot ## a short backtest, not for publication: a twentieth of the peers, one start-up time, an hour each
	$(BACKTEST) --quick --startup 2m --replicas 8 --seeds 2 --hours 1 --out bin/backtest-quick.html $(BACKTEST_FLAGS)

.PHONY: site
site: ## the documentation as a static site with a search and llms.txt, in bin/site/
	@cd deploy/release && go run ./cmd/site -version '$(VERSION)'

clean:
	rm -rf bin
