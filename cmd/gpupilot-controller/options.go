// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"time"

	"github.com/spf13/pflag"

	"github.com/gpupilot/gpupilot/internal/autoscaler/kube"
	"github.com/gpupilot/gpupilot/internal/autoscaler/kubeflags"
	"github.com/gpupilot/gpupilot/internal/base/flags"
	"github.com/gpupilot/gpupilot/internal/gpu/price"
	"github.com/gpupilot/gpupilot/internal/promql/rules"
	"github.com/gpupilot/gpupilot/internal/promql/scope"
	"github.com/gpupilot/gpupilot/internal/serve/kedascaler"
	"github.com/gpupilot/gpupilot/internal/window/discovery"
)

// config holds the values of flags and environment variables.
type config struct {
	kubeconfig, namespace string
	service               string // NAME[:PORT] while flags are read, then NAME
	servicePort           int32

	address     string
	pageAuth    string
	gpuPrice    string
	prices      price.Table // of gpuPrice
	pageHosts   []string
	securePort  int
	apiServices bool

	certFile, keyFile string

	interval, window time.Duration
	memory           string // of the windows, a quantity

	historyMemory, historyDir string // a quantity, a path

	roles       []string
	agents      string
	agentsIn    string
	agentHTTP   string
	agentToken  string
	agentScheme string
	dcgm        string
	dcgmIn      []string
	resources   []string

	podCIDRs        []string
	hostNetworkPods bool

	operatorLabels string // of the Prometheus Operator's objects

	ruleFiles       []string
	prometheusRules bool

	prometheus       string
	prometheusHTTP   string
	prometheusMaxAge time.Duration

	adapterConfig string

	queryNamespaces     []string
	queryNamespaceLabel string
	queriesPerNamespace int
	workloadMetrics     int

	nodeHealth bool
	agentImage string
	checked    string // the URL of a running controller

	keda struct {
		address string // empty: no scaler
		auth    string
		ca      string
		clients []string
	}
	external struct {
		enabled bool
	}

	logLevel  string
	logFormat string
	version   bool
	help      bool
}

// The bounds of --window-memory and --history-memory.
const (
	minWindowMemory  = 16 << 20
	maxWindowMemory  = 1 << 40
	minHistoryMemory = 1 << 20
	maxHistoryMemory = 64 << 30
)

// signalTimeout is the timeout of one query of a signal or of the metrics API.
const signalTimeout = 5 * time.Second

// The roles.
const (
	roleScrape = "scrape" // read agents and pods into windows
	roleAPI    = "api"    // serve custom.metrics.k8s.io
	roleQuery  = "query"  // evaluate PromQL over the windows: the HTTP API, recording rules, query signals
	roleDecide = "decide" // scale workloads
)

// The values of --page-auth and --keda-auth.
const (
	pageAuthToken = "token"
	pageAuthNone  = "none"
	kedaAuthCert  = "certificate"
	kedaAuthNone  = "none"
)

const defaultNamespace = "gpupilot-system"

func defaults() config {
	c := config{
		service: "gpupilot-controller",
		address: ":8080", pageAuth: pageAuthToken, securePort: 6443, apiServices: true,
		interval: time.Second, window: 10 * time.Minute, memory: "512Mi", historyMemory: "64Mi",
		roles:  []string{"all"},
		agents: discovery.DefaultAgents, dcgm: discovery.DefaultDCGM,
		agentScheme:         "http",
		prometheusMaxAge:    2 * time.Minute,
		queryNamespaceLabel: "namespace", queriesPerNamespace: 100,
		workloadMetrics: 200,
		logLevel:        "info", logFormat: "text",
	}
	c.keda.auth, c.keda.clients = kedaAuthCert, []string{"keda-operator"}
	return c
}

// option is a row of the flag table, with the fields of flags.Option.
type option struct {
	name  string
	bind  any // a pointer into the config
	help  string
	check func() error
}

// options is the flag table.
func (c *config) options() (out []flags.Option) {
	for _, o := range slices.Concat(c.mainRows(), c.servingRows(), c.ruleRows()) {
		out = append(out, flags.Option{Name: o.name, Env: flags.Variable(o.name), Bind: o.bind, Help: o.help, Check: o.check})
	}
	return out
}

func (c *config) mainRows() []option {
	return []option{
		{"kubeconfig", &c.kubeconfig, "kubeconfig `file` of the API server (default: the pod's service account)", nil},
		{"namespace", &c.namespace, "`namespace` of the controller's lease, Secret and Service (default: the namespace of its pod, else " + defaultNamespace + ")", kubeflags.IsNameOrEmpty(&c.namespace)},
		{"service", &c.service, "`NAME[:PORT]` of the Service through which the API server reaches the metrics API; port 443 unless given", kubeflags.IsService(&c.service)},

		{"address", &c.address, "`address` of the page, its JSON, /metrics, /healthz and /readyz", flags.IsAddress(&c.address)},
		{"page-auth", &c.pageAuth, "access to the page's contents and /metrics: token (a Kubernetes token; users see the namespaces in which they may get GPUAutoscalers) or none (everybody; only for loopback, or behind a proxy that authenticates)", flags.OneOf(&c.pageAuth, pageAuthToken, pageAuthNone)},
		{"page-hosts", &c.pageHosts, "`names` by which browsers reach the page with --page-auth=none, beside localhost and IP addresses, such as gpu.example.com; *: any name. Other names are refused, because a website could use them to read the page (DNS rebinding)", nil},
		{"gpu-price", &c.gpuPrice, "USD of a GPU-hour, for the costs on the page, in its JSON and on /metrics: one `price` for all GPUs, such as 2.5, or by model and node pool: NVIDIA H200=4.1,L4=0.8,pool:spot=1.2,*=2 (default: unknown)", price.Into(&c.gpuPrice, &c.prices)},
		{"secure-port", &c.securePort, "`port` of the metrics API", flags.Between(&c.securePort, 0, 65535)},
		{"tls-cert-file", &c.certFile, "`file` of the metrics API's certificate (default: self-signed, stored in a Secret)", nil},
		{"tls-private-key-file", &c.keyFile, "`file` of the certificate's private key", nil},
		{"register-apis", &c.apiServices, "create and update the APIServices of custom.metrics.k8s.io", nil},

		{"interval", &c.interval, "time between two scrapes of a target, and the longest time between two decisions", flags.Between(&c.interval, 50*time.Millisecond, time.Hour)},
		{"window", &c.window, "how far back samples are kept", flags.Between(&c.window, time.Minute, 24*time.Hour)},
		{"window-memory", &c.memory, "memory limit in `bytes` of scrape targets with their samples, such as 512Mi; at the limit, the windows of the largest targets get shorter", kubeflags.IsQuantity(&c.memory, minWindowMemory, maxWindowMemory, "from 16Mi to 1Ti, such as 512Mi")},
		{"history-memory", &c.historyMemory, "memory limit in `bytes` of the one-minute aggregates of 14 days, such as 64Mi; at the limit, the largest namespaces lose their oldest minutes", kubeflags.IsQuantity(&c.historyMemory, minHistoryMemory, maxHistoryMemory, "from 1Mi to 64Gi, such as 64Mi")},
		{"history-dir", &c.historyDir, "`directory` on a volume to which the history is written each minute, at most twice --history-memory per replica (default: in memory only, filled from --prometheus-url at the start)", nil},

		{"roles", &c.roles, "roles of this replica: all, or some of scrape, api, query and decide", c.checkRoles},
		{"agent-selector", &c.agents, "label `selector` of the agents' pods; several are separated by semicolons", kubeflags.AreSelectors(&c.agents)},
		{"agent-namespace", &c.agentsIn, "`namespace` of the agents' pods; pods of other namespaces are never agents (default: --namespace)", kubeflags.IsNameOrEmpty(&c.agentsIn)},
		{"dcgm-selector", &c.dcgm, "label `selector` of the pods of dcgm-exporters and of AMD's device-metrics-exporters; several are separated by semicolons, empty for none", kubeflags.AreSelectors(&c.dcgm)},
		{"dcgm-namespaces", &c.dcgmIn, "`namespaces` of dcgm-exporters' pods; pods of other namespaces are never dcgm-exporters (default: --namespace, gpu-operator, gke-managed-system and kube-amd-gpu)", kubeflags.AreNames(&c.dcgmIn)},
		{"gpu-resources", &c.resources, "`names` of resources that count GPUs, in addition to nvidia.com/* and those of amd.com (gpu, and partitions such as cpx_nps4): a pod holds no more devices than it requests of them", kubeflags.AreResources(&c.resources)},
		{"pod-cidrs", &c.podCIDRs, "`networks` of pods, such as 10.244.0.0/16; pods with other addresses are not scraped, except for those on their node's network (default: all except loopback and link-local)", flags.AreNetworks(&c.podCIDRs)},
		{"scrape-host-network-pods", &c.hostNetworkPods, "also scrape the metrics of pods on their node's network, where a GPUAutoscaler's port can be the port of any service of the node", nil},
		{"prometheus-operator-selector", &c.operatorLabels, "label `selector` of the PrometheusRules that are read, such as release=kube-prometheus-stack (default: all)", kubeflags.IsSelector(&c.operatorLabels)},
		{"agent-http-config", &c.agentHTTP, "`file` with a Prometheus http_client_config for agents and dcgm-exporters: credentials, TLS; it is not used for other pods", nil},
		{"agent-token-file", &c.agentToken, "`file` with the token for agents, of the audience agent.gpupilot.dev; it is read for each scrape. Agents of GPUExporters then require tokens", nil},
		{"agent-scheme", &c.agentScheme, "`scheme` of agents and dcgm-exporters: http or https", flags.OneOf(&c.agentScheme, "http", "https")},

		{"prometheus-url", &c.prometheus, "`address` of a PromQL backend for query signals, above /api/v1: Prometheus, Thanos, Mimir or VictoriaMetrics", nil},
		{"prometheus-http-config", &c.prometheusHTTP, "`file` with a Prometheus http_client_config for the backend: credentials, TLS, headers such as a tenant's", nil},
		{"prometheus-max-age", &c.prometheusMaxAge, "maximum age of a sample that a query uses; more than twice the backend's scrape interval", flags.Between(&c.prometheusMaxAge, 5*time.Second, time.Hour)},
		{"adapter-config", &c.adapterConfig, "`file` of prometheus-adapter whose rules are served as custom metrics; it is read again when it changes. Its resourceRules are not served", nil},
		{"query-namespaces", &c.queryNamespaces, "trusted `namespaces`, separated by commas, whose queries may read series of all namespaces; * trusts every namespace (default: none)", kubeflags.AreNamespaces(&c.queryNamespaces, scope.All)},
		{"query-namespace-label", &c.queryNamespaceLabel, "`label` of the backend's series with their namespace; queries of namespaces that are not in --query-namespaces are limited by it", isQueryLabel(&c.queryNamespaceLabel)},
		{"queries-per-namespace", &c.queriesPerNamespace, "maximum number of different queries per namespace, of GPUAutoscalers and MetricQueries together; further queries, of the newest objects, are not evaluated, and a quarter of the number is for GPUAutoscalers only", flags.Between(&c.queriesPerNamespace, 1, 10000)},
		{"workload-metrics", &c.workloadMetrics, "maximum number of workloads, and of namespaces, whose GPU aggregates are on /metrics; those with the most GPUs are; 0: none", flags.Between(&c.workloadMetrics, 0, 10000)},

		{"check", &c.checked, "check that the running controller with the page at this `URL` is ready, and that the API server gets its metrics APIs, within a minute, and exit; helm test does this", nil},
		{"agent-image", &c.agentImage, "`image` of the agents of GPUExporters without an image of their own", nil},
		{"node-health", &c.nodeHealth, "set the condition GPUHealthy of nodes: False after XID errors that need a reset, a failed row remapping or a lost GPU", nil},

		{"log-level", &c.logLevel, "`level` of the log: debug, info, warn or error", flags.OneOf(&c.logLevel, "debug", "info", "warn", "error")},
		{"log-format", &c.logFormat, "`format` of the log: text or json", flags.IsLogFormat(&c.logFormat)},
		{"version", &c.version, "print the version and exit", nil},
		{"help", &c.help, "print this and exit", nil},
	}
}

// servingRows are the flags of external metrics and of the KEDA scaler.
func (c *config) servingRows() []option {
	return []option{
		{"external-metrics", &c.external.enabled, "serve external.metrics.k8s.io: MetricQueries and the desired replicas of GPUAutoscalers; KEDA serves this API where it is installed", nil},
		{"keda-address", &c.keda.address, "`address` of the external and external-push scaler for KEDA, gRPC over TLS with the metrics API's certificate; empty: none", flags.IsAddressOrEmpty(&c.keda.address)},
		{"keda-auth", &c.keda.auth, "who may use the KEDA scaler: certificate (a client certificate of --keda-client-ca-file) or none (everybody who reaches the port)", flags.OneOf(&c.keda.auth, kedaAuthCert, kedaAuthNone)},
		{"keda-client-ca-file", &c.keda.ca, "`file` with the authorities of KEDA's client certificates, read again when it changes", nil},
		{"keda-clients", &c.keda.clients, "common `names` of client certificates that may ask about all namespaces; the other certificates may ask about the namespaces in their URIs, " + kedascaler.NamespaceURI + "NAMESPACE", nil},
	}
}

func (c *config) ruleRows() []option {
	return []option{
		{"rule-files", &c.ruleFiles, "`files` with recording rules in Prometheus's format, separated by commas; the last part may be a pattern, such as /etc/rules/*.yaml; they are read again when they change", rules.ArePatterns(&c.ruleFiles)},
		{"prometheus-rules", &c.prometheusRules, "evaluate the recording rules of PrometheusRules (monitoring.coreos.com), each limited to its namespace unless --query-namespaces trusts it; without the CRD this does nothing", nil},
	}
}

// parseConfig parses flags and environment variables, and checks the flags together.
func parseConfig(args []string, getenv func(string) string) (*config, *pflag.FlagSet, error) {
	c := defaults()
	fs, err := flags.Parse("gpupilot-controller", c.options(), args, getenv)
	if err != nil {
		return nil, fs, err
	}
	if err := c.check(); err != nil {
		return nil, fs, err
	}
	c.service, c.servicePort, _ = kubeflags.Service(c.service) // checked above
	c.namespace = cmp.Or(c.namespace, kube.OwnNamespace(), defaultNamespace)
	if c.agentsIn == "" && fs.Changed("agent-namespace") {
		return nil, fs, errors.New("--agent-namespace is empty: set the namespace of the agents; an agent in any namespace could report values for every pod of its node")
	}
	c.agentsIn = cmp.Or(c.agentsIn, c.namespace)
	if len(c.dcgmIn) == 0 {
		c.dcgmIn = discovery.DefaultDCGMNamespaces(c.namespace)
	}
	return &c, fs, nil
}

// check checks the flags together.
func (c *config) check() error {
	switch {
	case (c.certFile == "") != (c.keyFile == ""):
		return fmt.Errorf("--tls-cert-file is %q and --tls-private-key-file is %q: give both or neither", c.certFile, c.keyFile)
	case c.prometheusHTTP != "" && c.prometheus == "":
		return fmt.Errorf("--prometheus-http-config is %q and --prometheus-url is empty: set the URL of the backend", c.prometheusHTTP)
	case c.keda.address != "" && c.keda.auth == kedaAuthCert && c.keda.ca == "":
		return errors.New("--keda-address is set and --keda-client-ca-file is empty: give the authority of KEDA's client certificates, " +
			"or --keda-auth=none if the network limits who reaches the port")
	}
	return nil
}

func (c *config) checkRoles() error {
	for _, r := range c.roles {
		if !slices.Contains([]string{"all", roleScrape, roleAPI, roleQuery, roleDecide}, r) {
			return fmt.Errorf("%q is none of all, scrape, api, query and decide", r)
		}
	}
	if !c.has(roleScrape) && (c.has(roleDecide) || c.has(roleAPI) || c.has(roleQuery)) {
		return errors.New("decide, api and query need the data of scrape: add scrape")
	}
	return nil
}

// has reports whether this replica has the role.
func (c *config) has(role string) bool {
	return slices.Contains(c.roles, role) || slices.Contains(c.roles, "all")
}

// logger makes the logger with the level and format of the flags.
func (c *config) logger(out io.Writer) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(c.logLevel)) // checked with the flags
	return flags.Logger(out, c.logFormat, level)
}

func isQueryLabel(p *string) func() error {
	return func() error {
		_, err := scope.New(scope.Config{Label: *p})
		return err
	}
}
