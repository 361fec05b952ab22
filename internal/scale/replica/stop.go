// SPDX-License-Identifier: Apache-2.0

package replica

import (
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// defaultGrace is the grace period of a pod that does not set one, in seconds.
const defaultGrace = 30

// GraceProblem says that containers of a pod are killed while they finish their requests;
// empty: they are not, as far as that is known.
func GraceProblem(spec *corev1.PodSpec) string {
	grace := int64(defaultGrace)
	if spec.TerminationGracePeriodSeconds != nil {
		grace = *spec.TerminationGracePeriodSeconds
	}
	for i := range spec.Containers {
		c := &spec.Containers[i]
		before, drain := StopTimes(c)
		if need := before + drain; need > 0 && need >= grace {
			return fmt.Sprintf("the container %s needs %d s to end (%d s preStop, %d s drain), and is killed after %d s: requests in flight are lost at each scale-down", c.Name, need, before, drain, grace)
		}
	}
	return ""
}

// StopTimes returns the seconds for which a container's preStop hook sleeps, and for which
// its server finishes requests after that; 0: not known.
func StopTimes(c *corev1.Container) (before, drain int64) { return preStop(c), drainSeconds(c) }

// preStop is how long a container's preStop hook sleeps, in seconds; 0: not known.
func preStop(c *corev1.Container) int64 {
	if c.Lifecycle == nil || c.Lifecycle.PreStop == nil {
		return 0
	}
	switch h := c.Lifecycle.PreStop; {
	case h.Sleep != nil:
		return h.Sleep.Seconds
	case h.Exec != nil:
		return sleepOf(strings.Join(h.Exec.Command, " "))
	}
	return 0
}

// sleepOf is the longest sleep of a command line, in seconds.
func sleepOf(command string) (longest int64) {
	words := strings.FieldsFunc(command, func(r rune) bool { return strings.ContainsRune(" \t\n;&|()", r) })
	for i, word := range words {
		if strings.TrimPrefix(word, "/bin/") == "sleep" && i+1 < len(words) {
			longest = max(longest, seconds(words[i+1]))
		}
	}
	return longest
}

// longestStop bounds a number of seconds from an object.
const longestStop = 1 << 20

// seconds parses a whole number of seconds, with a unit or without; 0: it is none.
func seconds(s string) int64 {
	unit := int64(1)
	for suffix, n := range map[string]int64{"s": 1, "m": 60, "h": 3600} {
		if rest, ok := strings.CutSuffix(s, suffix); ok {
			s, unit = rest, n
			break
		}
	}
	n, err := strconv.ParseFloat(s, 64)
	if err != nil || !(n > 0 && n < longestStop) {
		return 0
	}
	return int64(n * float64(unit))
}

// drainFlags are the flags of servers with the time that they take to finish requests after
// SIGTERM, in seconds.
var drainFlags = map[string]int64{
	"--shutdown-timeout":  0,  // vLLM: by default it aborts them
	"--exit-timeout-secs": 30, // Triton, and its default
}

// drainSeconds is how long a container's server waits for requests in flight.
func drainSeconds(c *corev1.Container) int64 {
	line := strings.Fields(strings.Join(append(append([]string{}, c.Command...), c.Args...), " "))
	for i, word := range line {
		name, value, ok := strings.Cut(word, "=")
		if _, known := drainFlags[name]; known {
			if !ok && i+1 < len(line) {
				value = line[i+1]
			}
			return seconds(value)
		}
	}
	if len(line) > 0 && strings.HasSuffix(line[0], "tritonserver") {
		return drainFlags["--exit-timeout-secs"]
	}
	return 0
}
