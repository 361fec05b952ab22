// SPDX-License-Identifier: Apache-2.0

package compat

import "regexp"

// allowance is a difference that is meant. Its patterns are of the whole text;
// an empty one matches any.
type allowance struct {
	because      string // words of docs/dcgm-exporter.md
	scenario     string
	kind         kind
	name         string
	theirs, ours string
	release      string // of the exporter, by the form of its version
}

const (
	none = `\(absent\)`
	some = `\(present\)`
	// podLabels are the labels that say whose a device is.
	podLabels = "container|namespace|pod|container_name|pod_namespace|pod_name|pod_uid|vgpu"
	// shares are the metrics that sharers have a part of.
	shares = "DCGM_FI_DEV_FB_USED|DCGM_FI_DEV_GPU_UTIL"
)

// allowances are all that is meant, each with its words.
func allowances() []allowance {
	return []allowance{
		{because: "Our own series start with `gpupilot_`", kind: kindMetric, name: ownPrefix + ".*", theirs: none},
		{because: "HELP texts are our own", scenario: "(pods: )?default collectors", kind: kindHelp},
		{because: "`Content-Type` contains the format's version", kind: kindHeader, name: "Content-Type", theirs: "text/plain; charset=utf-8", ours: `text/plain; version=0\.0\.4; charset=utf-8`},
		{because: "gzip and OpenMetrics are available on request", kind: kindHeader, name: "Content-Encoding", theirs: "", ours: "gzip"},
		{because: "gzip and OpenMetrics are available on request", kind: kindHeader, name: "Content-Type", ours: "application/openmetrics-text.*"},
		// An empty answer has no type; ours has series of its own.
		{because: "Our own series start with `gpupilot_`", kind: kindHeader, name: "Content-Type", theirs: "", ours: "text/plain.*"},
		{because: "Label values are escaped", scenario: "a model with quotes", kind: kindMalformed, theirs: some},
		{because: "A line that repeats a field is invalid", scenario: "a field twice", kind: kindTwice, theirs: `\(repeated\)`},
		{
			because: "An invalid line of a collectors file is left out", kind: kindStart, theirs: "exits with .*", ours: "runs",
			scenario: "an unknown field|two columns|a type that is none|an indented comment|a quote behind a blank",
		},
		{because: "A value that the field cannot have", scenario: "a value that cannot be", kind: kindSeries, name: `DCGM_FI_DEV_GPU_UTIL\{.*`, theirs: some},
		{because: "One failing device or collector hides no other", scenario: "a GPU that cannot be read", theirs: none, ours: some},
		{because: "No lost GPU, driver or server ends the process", scenario: "a lost host engine|no driver|a GPU that cannot be read", kind: kindStart, theirs: "exits with .*", ours: "runs"},
		{because: "A device that several pods share has series without a pod's labels", scenario: "pods: sharing, several", kind: kindLabel, name: podLabels, ours: none},
		{because: "Every resource of `nvidia.com` counts as a GPU", scenario: "pods: gpu.shared", kind: kindLabel, name: podLabels, theirs: none},
		{because: "dcgm-exporter has no series before the first error", kind: kindMetric, name: "DCGM_FI_DEV_XID_ERRORS", theirs: none},
		{because: "dcgm-exporter has no series before the first error", kind: kindSeries, name: `DCGM_FI_DEV_XID_ERRORS\{.*`, theirs: none},
		{because: "A ConfigMap that does not exist yet is waited for", scenario: "a ConfigMap that is not there", kind: kindStart, theirs: "exits with .*", ours: "runs"},
		{because: "GPUs of several models can be mixed", scenario: "one GPU without profiling", kind: kindStart, theirs: "exits with .*", ours: "runs"},
		{because: "`err_msg` texts are our own", kind: kindLabel, name: "err_msg"},
		{because: "`-d g+i` works", scenario: `MIG, -d g\+i`, kind: kindStart, theirs: "exits with .*", ours: "runs"},
		{because: "A name has one `# HELP` and `# TYPE`", kind: kindTwice, name: "TYPE of .*", theirs: `\(repeated\)`},
		{because: "`nvswitch` is the switch's own id", scenario: "switches.*|links.*", kind: kindTwice, theirs: `\(repeated\)`},
		{because: "`nvswitch` is the switch's own id", scenario: "switches.*|links.*", kind: kindSeries, name: "DCGM_FI_DEV_NVSWITCH_.*"},
		{because: "Switches and CPUs are shown as in 4.8", scenario: "switches.*|CPUs.*", release: old},
		{because: "`DCGM_EXP_CLOCK_EVENTS_COUNT` counts collections", scenario: "exporter counters", kind: kindValue, name: "DCGM_EXP_CLOCK_EVENTS_COUNT"},
		{
			because: "can only be labels", scenario: "further fields", kind: kindMetric, theirs: some, ours: none,
			name: "DCGM_FI_CUDA_DRIVER_VERSION|DCGM_FI_DEV_MINOR_NUMBER",
		},
		{because: "A job of `N` applies to the GPU alone", scenario: "job mapping", kind: kindLabel, name: "hpc_job", release: old},
		{because: "`-n` works", scenario: "no host name", kind: kindLabel, name: "[Hh]ostname", ours: none},
		{because: "With `-r` and without `-k`, the node's label is still the node's name", scenario: "a remote host engine", kind: kindLabel, name: "[Hh]ostname", theirs: "localhost"},
		{because: "Every series that stays configured continues, profiling included", scenario: "reload", kind: kindMetric, name: "DCGM_FI_PROF_.*", theirs: none, ours: some},
		{because: "GPUs of several models can be mixed", scenario: "one GPU without profiling", kind: kindMetric, theirs: none, ours: some},
		{because: "`SKIPPING DCGM VALUE`", scenario: "switches.*|links.*|CPUs.*", kind: kindLabel, theirs: "SKIPPING DCGM VALUE"},
		{because: "`-s i:0-3` and `-p i:0-7` select links and cores of all", scenario: "CPUs, -p i:.*|links, -s i:.*", kind: kindMetric, theirs: none, ours: some},
		{because: "4.8.2 shows 0 where it sees no process", scenario: "pods: virtual GPUs.*", kind: kindValue, name: shares, theirs: "0"},
		{because: "4.8.2 shows 0 where it sees no process", scenario: "pods: virtual GPUs.*", kind: kindSeries, name: "(" + shares + `)\{.*`, ours: none},
		{because: "4.8.2 shows 0 where it sees no process", scenario: "pods: virtual GPUs.*", kind: kindLabel, name: "pod_uid", theirs: "", ours: none},
		{because: "4.8.2 answers every scrape with 500 for a kind", scenario: "pods: an unknown kind of ids"},
		{because: "A window is between 1 ms and a day", scenario: "a window .*", kind: kindLabel, name: "window_size_in_ms"},
		{because: "The built-in list is 4.8's", scenario: "(pods: )?default collectors", kind: kindMetric, theirs: none, ours: some, release: old},
		{because: "The built-in list is 4.8's", scenario: "(pods: )?default collectors", kind: kindType, name: "DCGM_FI_PROF_PCIE_.X_BYTES", release: old},
	}
}

// old are the releases before 4.
const old = `.*\b[0-3]\.\d+\.\d+`

// intended is what makes a difference intended, or nothing.
func intended(f finding, release string) string {
	for _, a := range allowances() {
		if (a.kind == "" || a.kind == f.kind) && whole(a.scenario, f.scenario) && whole(a.name, f.name) &&
			whole(a.theirs, f.theirs) && whole(a.ours, f.ours) && whole(a.release, release) {
			return a.because
		}
	}
	return ""
}

func whole(pattern, s string) bool {
	return pattern == "" || regexp.MustCompile(`(?s)^(?:`+pattern+`)$`).MatchString(s)
}
