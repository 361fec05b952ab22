// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/gpupilot/gpupilot/internal/base/flags"
	"github.com/gpupilot/gpupilot/internal/node/apiwatch"
)

// config is what flags and environment say, as they say it.
type config struct {
	collectors     string
	address        string
	intervalMillis int
	kubernetes     bool
	devices        string
	noHostname     bool
	podResources   string
	resourceNames  []string
	debug          bool
	logFormat      string

	backend     string
	nvmlLibrary string
	hostEngine  string
	dcgmLibrary string
	profile     string
	nodeName    string
	// serviceAccount is the directory of a token and the API server's CA.
	serviceAccount string
	auth           string
	simGPUs        int
	simModel       string
	simState       string
	simPush        bool

	compat // the other flags of dcgm-exporter
	labels labelFlags

	processFlags
	probeFlags

	version bool
	help    bool

	intervalInFile bool // --config-file has the interval, or may have it later

	adjusted  []warning // flag values that were adjusted
	arguments []string  // arguments that are not flags
}

// option is a row of the flag table.
type option flags.Option

// The bounds of the interval between collections.
const (
	minIntervalMillis = 10
	maxIntervalMillis = 3_600_000
)

// The values of --auth.
const (
	authNone  = "none"
	authToken = "token"
)

// defaults returns the values of flags that neither the command line nor the
// environment sets.
func defaults() config {
	return config{
		address:        ":9400",
		intervalMillis: 1000,
		devices:        "f",
		podResources:   "/var/lib/kubelet/pod-resources/kubelet.sock",
		logFormat:      "text",
		backend:        "auto",
		profile:        "4.8",
		simGPUs:        8,
		serviceAccount: apiwatch.AccountDir,
		auth:           authNone,
		compat:         compatDefaults(),
		processFlags:   processDefaults(),
		probeFlags:     probeDefaults(),
	}
}

// options returns the flag table, dcgm-exporter's names and variables first.
func (c *config) options() []flags.Option {
	rows := slices.Concat(c.mainOptions(), c.compat.options(), c.ownOptions(), c.processFlags.options(), c.probeFlags.options(), c.labels.options(), c.lastOptions())
	out := make([]flags.Option, len(rows))
	for i, o := range rows {
		out[i] = flags.Option(o)
	}
	return out
}

func (c *config) mainOptions() []option {
	return []option{
		{
			"collectors", "f", "DCGM_EXPORTER_COLLECTORS", &c.collectors,
			"`file` of the metrics to show, as CSV: field, type, help (default: a built-in list)", nil,
		},
		{
			"address", "a", "DCGM_EXPORTER_LISTEN", &c.address,
			"`address` to serve on", flags.IsAddress(&c.address),
		},
		{
			"collect-interval", "c", "DCGM_EXPORTER_INTERVAL", &c.intervalMillis,
			"time between collections, in `milliseconds`", clamp(&c.intervalMillis, minIntervalMillis, maxIntervalMillis),
		},
		{
			"kubernetes", "k", "DCGM_EXPORTER_KUBERNETES", &c.kubernetes,
			"label devices with the pods that hold them", nil,
		},
		{
			"devices", "d", "DCGM_EXPORTER_DEVICES_STR", &c.devices,
			"`devices` to collect: f (MIG instances, else GPUs), g or g:0,2-3 (GPUs), i or i:0-6 (instances), g+i", checkDevices(&c.devices),
		},
		{
			"no-hostname", "n", "DCGM_EXPORTER_NO_HOSTNAME", &c.noHostname,
			"omit the label with the node's name", nil,
		},
		{
			"pod-resources-kubelet-socket", "", "DCGM_POD_RESOURCES_KUBELET_SOCKET", &c.podResources,
			"`path` of the kubelet's pod-resources socket", checkSocket(&c.podResources),
		},
		{
			"nvidia-resource-names", "", "NVIDIA_RESOURCE_NAMES", &c.resourceNames,
			"further resource `names` that count as GPUs, besides those of nvidia.com/* and of amd.com that count GPUs", nil,
		},
		{"debug", "", "DCGM_EXPORTER_DEBUG", &c.debug, "log more", nil},
		{
			"log-format", "", "DCGM_EXPORTER_LOG_FORMAT", &c.logFormat,
			"`format` of the log: text or json", flags.IsLogFormat(&c.logFormat),
		},
	}
}

// ownOptions returns the flags that dcgm-exporter does not have.
func (c *config) ownOptions() []option {
	return []option{
		{
			"backend", "", "GPUPILOT_BACKEND", &c.backend,
			"GPU library: auto (DCGM if a host engine is given, else NVML, with DCGM for fields that only DCGM has), nvml, dcgm or sim", flags.OneOf(&c.backend, "auto", "nvml", "dcgm", "sim"),
		},
		{
			"remote-hostengine-info", "r", "DCGM_REMOTE_HOSTENGINE_INFO", &c.hostEngine,
			"`address` of a DCGM host engine to read GPUs through: host:port, tcp://host:port, unix:///path or vsock://cid:port", isOneEngine(&c.hostEngine),
		},
		{
			"dcgm-library", "", "GPUPILOT_DCGM_LIBRARY", &c.dcgmLibrary,
			"`path` of libdcgm.so.4 (default: as the loader finds it)", nil,
		},
		{
			"nvml-library", "", "GPUPILOT_NVML_LIBRARY", &c.nvmlLibrary,
			"`path` of libnvidia-ml.so.1 (default: as the loader finds it)", nil,
		},
		{
			"profile", "", "GPUPILOT_PROFILE", &c.profile,
			"dcgm-exporter `release` whose names metrics and labels have: 4.8, 4.8.2, 4.9 or 1.x", checkProfile(&c.profile),
		},
		{
			"service-account", "", "GPUPILOT_SERVICE_ACCOUNT", &c.serviceAccount,
			"`directory` of the service account's token and ca.crt, for pod labels, -m and --auth", nil,
		},
		{
			"auth", "", "GPUPILOT_AUTH", &c.auth,
			"who may read everything but the health checks: none (everybody) or token (a Kubernetes token whose owner may get /metrics; the API server reviews it)", flags.OneOf(&c.auth, authNone, authToken),
		},
		{"node-name", "", "NODE_NAME", &c.nodeName, "`name` of the node (default: the hostname for the label, and for the API server the node of the kubelet's pods)", nil},
		{"sim-gpus", "", "GPUPILOT_SIM_GPUS", &c.simGPUs, "number of simulated GPUs", nil},
		{"sim-model", "", "GPUPILOT_SIM_MODEL", &c.simModel, "model `name` of the simulated GPUs (default: NVIDIA H200)", nil},
		{
			"sim-state", "", "GPUPILOT_SIM_STATE", &c.simState,
			"`file` with the load of the simulated GPUs, which can change at any time (default: a built-in load)", nil,
		},
		{"sim-push", "", "GPUPILOT_SIM_PUSH", &c.simPush, "let everybody who reaches the agent set the load of the simulated GPUs, as gpupilot load sim --agent does", nil},
	}
}

func (c *config) lastOptions() []option {
	return []option{
		{"version", "v", "", &c.version, "print the version and exit", nil},
		{"help", "h", "", &c.help, "print this and exit", nil},
	}
}

// parseConfig reads the flags and the environment. A flag overrides its
// variable, and the variable overrides the default. An error names the flag or
// variable, its value and the allowed values.
func parseConfig(args []string, getenv func(string) string) (*config, *pflag.FlagSet, error) {
	c := defaults()
	options := c.options()
	fs := flags.Set("gpupilot-agent", options)
	fs.SetInterspersed(false) // as in dcgm-exporter's parser: everything after an argument is an argument
	if err := fs.Parse(normalise(fs, options, args)); err != nil {
		return nil, fs, flags.ParseError(err)
	}
	if fs.NArg() > 0 {
		c.arguments = fs.Args()
	}
	for _, o := range options {
		source, err := o.FromEnv(fs, getenv)
		if err != nil {
			return nil, fs, err
		}
		if err := c.verify(&o, fs, source); err != nil {
			return nil, fs, fmt.Errorf("invalid value %q of %s: %w", fs.Lookup(o.Name).Value.String(), source, err)
		}
	}
	if err := c.readFile(fs, options, getenv); err != nil {
		return nil, fs, err
	}
	return &c, fs, nil
}

// verify checks an option's value. A value with which dcgm-exporter starts is
// adjusted with a warning, and is not an error.
func (c *config) verify(o *flags.Option, fs *pflag.FlagSet, source string) error {
	if o.Check == nil {
		return nil
	}
	given := fs.Lookup(o.Name).Value.String()
	err := o.Check()
	if a, ok := errors.AsType[*adjustment](err); ok {
		c.adjusted = append(c.adjusted, warning{source, given, a.used, a.why})
		return nil
	}
	return err
}

// normalise makes pflag accept what dcgm-exporter's parser accepts: one or two
// dashes before a long or a short name.
func normalise(fs *pflag.FlagSet, options []flags.Option, args []string) []string {
	out := make([]string, 0, len(args))
	for i, arg := range args {
		if arg == "--" {
			return append(out, args[i:]...)
		}
		name, _, _ := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		rest := strings.TrimLeft(arg, "-")
		long := slices.IndexFunc(options, func(o flags.Option) bool { return len(o.Alias) > 1 && o.Alias == name })
		switch {
		case rest == arg:
		case long >= 0:
			arg = "--" + options[long].Name + strings.TrimPrefix(rest, name)
		case len(name) > 1 && fs.Lookup(name) != nil:
			arg = "--" + rest
		case len(name) == 1 && fs.ShorthandLookup(name) != nil:
			arg = "-" + rest
		}
		out = append(out, arg)
	}
	return out
}
