// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/gpupilot/gpupilot/internal/apiwatch"
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
	simGPUs        int
	simModel       string
	simState       string

	compat // what else dcgm-exporter has
	labels labelFlags

	processFlags

	version bool
	help    bool
}

// option is one row of the flag table. The default is what the bound variable
// holds.
type option struct {
	name, alias string // --name, -a; an alias may have several letters, as urfave/cli's
	env         string // empty: no variable
	bind        any    // a pointer into the config
	help        string
	check       func() error // nil: any value will do; its error says what is allowed
}

// defaults are the values where neither flag nor variable is given.
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
		compat:         compatDefaults(),
		processFlags:   processDefaults(),
	}
}

// options is the flag table, dcgm-exporter's names and variables first.
func (c *config) options() []option {
	return slices.Concat(c.mainOptions(), c.compat.options(), c.ownOptions(), c.processFlags.options(), c.labels.options(), c.lastOptions())
}

func (c *config) mainOptions() []option {
	return []option{
		{
			"collectors", "f", "DCGM_EXPORTER_COLLECTORS", &c.collectors,
			"`file` of the metrics to show, as CSV: field, type, help (default: a built-in list)", nil,
		},
		{
			"address", "a", "DCGM_EXPORTER_LISTEN", &c.address,
			"`address` to serve on", checkAddress(&c.address),
		},
		{
			"collect-interval", "c", "DCGM_EXPORTER_INTERVAL", &c.intervalMillis,
			"time between collections, in `milliseconds`", checkRange(&c.intervalMillis, 10, 3_600_000),
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
			"leave out the label with the node's name", nil,
		},
		{
			"pod-resources-kubelet-socket", "", "DCGM_POD_RESOURCES_KUBELET_SOCKET", &c.podResources,
			"`path` of the kubelet's pod-resources socket", checkNotEmpty(&c.podResources),
		},
		{
			"nvidia-resource-names", "", "NVIDIA_RESOURCE_NAMES", &c.resourceNames,
			"further resource `names` that count as GPUs, beside nvidia.com/gpu, nvidia.com/gpu.shared and nvidia.com/mig-*", nil,
		},
		{"debug", "", "DCGM_EXPORTER_DEBUG", &c.debug, "log more", nil},
		{
			"log-format", "", "DCGM_EXPORTER_LOG_FORMAT", &c.logFormat,
			"`format` of the log: text or json", checkOneOf(&c.logFormat, "text", "json"),
		},
	}
}

// ownOptions are those that dcgm-exporter does not have.
func (c *config) ownOptions() []option {
	return []option{
		{
			"backend", "", "GPUPILOT_BACKEND", &c.backend,
			"how GPUs are read: auto (DCGM if a host engine is given, else NVML, with DCGM for what only that gives), nvml, dcgm or sim", checkOneOf(&c.backend, "auto", "nvml", "dcgm", "sim"),
		},
		{
			"remote-hostengine-info", "r", "DCGM_REMOTE_HOSTENGINE_INFO", &c.hostEngine,
			"`address` of a DCGM host engine, which then is the backend: host:port, tcp://host:port, unix:///path or vsock://cid:port", nil,
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
			"whose names metrics and labels have, a dcgm-exporter `release`: 4.8, 4.8.2, 4.9 or 1.x", checkProfile(&c.profile),
		},
		{
			"service-account", "", "GPUPILOT_SERVICE_ACCOUNT", &c.serviceAccount,
			"`directory` of the service account's token and ca.crt, for pod labels and -m", nil,
		},
		{"node-name", "", "NODE_NAME", &c.nodeName, "`name` of the node (default: the hostname as a label, and for the API server the node where the pods of the kubelet run)", nil},
		{"sim-gpus", "", "GPUPILOT_SIM_GPUS", &c.simGPUs, "how many GPUs the sim backend has", nil},
		{"sim-model", "", "GPUPILOT_SIM_MODEL", &c.simModel, "their marketing `name` (default: NVIDIA H200)", nil},
		{
			"sim-state", "", "GPUPILOT_SIM_STATE", &c.simState,
			"`file` that says what they do, and may change at any time (default: a load of their own)", nil,
		},
	}
}

func (c *config) lastOptions() []option {
	return []option{
		{"version", "v", "", &c.version, "print the version and exit", nil},
		{"help", "h", "", &c.help, "print this and exit", nil},
	}
}

// parseConfig reads flags and environment. A flag goes before its variable, and
// that before the default. An error names the flag or variable, its value and
// what is allowed.
func parseConfig(args []string, getenv func(string) string) (*config, *pflag.FlagSet, error) {
	c := defaults()
	fs := pflag.NewFlagSet("gpupilot-agent", pflag.ContinueOnError)
	fs.SortFlags = false
	fs.SetOutput(io.Discard)
	fs.Usage = func() {}
	options := c.options()
	for _, o := range options {
		o.addTo(fs)
	}
	if err := fs.Parse(normalise(fs, options, args)); err != nil {
		return nil, fs, readable(err)
	}
	if fs.NArg() > 0 {
		return nil, fs, fmt.Errorf("unexpected argument %q: only flags are understood", fs.Arg(0))
	}
	for _, o := range options {
		if err := o.fromEnv(fs, getenv); err != nil {
			return nil, fs, err
		}
	}
	if err := c.readFile(fs, options, getenv); err != nil {
		return nil, fs, err
	}
	return &c, fs, nil
}

func (o *option) addTo(fs *pflag.FlagSet) {
	help, alias := o.help, o.alias
	if len(alias) > 1 { // normalise knows it
		help, alias = help+" (-"+alias+")", ""
	}
	if o.env != "" {
		help += " [" + o.env + "]"
	}
	switch p := o.bind.(type) {
	case *string:
		fs.StringVarP(p, o.name, alias, *p, help)
	case *int:
		fs.IntVarP(p, o.name, alias, *p, help)
	case *bool:
		fs.BoolVarP(p, o.name, alias, *p, help)
	case *[]string:
		fs.StringSliceVarP(p, o.name, alias, *p, help)
	case *time.Duration:
		fs.DurationVarP(p, o.name, alias, *p, help)
	default:
		panic(fmt.Sprintf("option %s is bound to a %T", o.name, p))
	}
}

// fromEnv takes the variable where the flag is not given, and checks the value.
func (o *option) fromEnv(fs *pflag.FlagSet, getenv func(string) string) error {
	f := fs.Lookup(o.name)
	source := "--" + o.name
	if o.env != "" && !f.Changed {
		if v := getenv(o.env); v != "" {
			source = o.env
			if err := f.Value.Set(v); err != nil {
				return fmt.Errorf("invalid value %q of %s (--%s): it is %s", v, o.env, o.name, kind(f))
			}
		}
	}
	if o.check == nil {
		return nil
	}
	if err := o.check(); err != nil {
		return fmt.Errorf("invalid value %q of %s: %w", f.Value.String(), source, err)
	}
	return nil
}

// normalise accepts what dcgm-exporter's flag parser does: one dash or two,
// before a long name as before a short one.
func normalise(fs *pflag.FlagSet, options []option, args []string) []string {
	out := make([]string, 0, len(args))
	for i, arg := range args {
		if arg == "--" {
			return append(out, args[i:]...)
		}
		name, _, _ := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		rest := strings.TrimLeft(arg, "-")
		long := slices.IndexFunc(options, func(o option) bool { return len(o.alias) > 1 && o.alias == name })
		switch {
		case rest == arg:
		case long >= 0:
			arg = "--" + options[long].name + strings.TrimPrefix(rest, name)
		case len(name) > 1 && fs.Lookup(name) != nil:
			arg = "--" + rest
		case len(name) == 1 && fs.ShorthandLookup(name) != nil:
			arg = "-" + rest
		}
		out = append(out, arg)
	}
	return out
}

// readable says of a value that does not parse what would.
func readable(err error) error {
	if bad, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		f := bad.GetFlag()
		return fmt.Errorf("invalid value %q of --%s: it is %s", bad.GetValue(), f.Name, kind(f))
	}
	return err
}

func kind(f *pflag.Flag) string {
	switch f.Value.Type() {
	case "int":
		return "a whole number"
	case "bool":
		return "true or false"
	case "duration":
		return "a duration, such as 1.5s"
	}
	return "a " + f.Value.Type()
}

func checkOneOf(p *string, allowed ...string) func() error {
	return func() error {
		for _, a := range allowed {
			if *p == a {
				return nil
			}
		}
		return fmt.Errorf("it is one of %s", strings.Join(allowed, ", "))
	}
}

func checkRange(p *int, lo, hi int) func() error {
	return func() error {
		if *p < lo || *p > hi {
			return fmt.Errorf("it is between %d and %d", lo, hi)
		}
		return nil
	}
}

func checkNotEmpty(p *string) func() error {
	return func() error {
		if *p == "" {
			return errors.New("it must not be empty")
		}
		return nil
	}
}
