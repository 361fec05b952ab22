// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/gpupilot/gpupilot/internal/replay/trace"
)

// Load is an hour of requests to a chat service, with the day before it.
type Load struct {
	Name  string
	About string

	start          float64                    // of the hour, in hours of the day
	rate           func(hour float64) float64 // share of the day's peak, by the hour of the day
	prompt, output float64                    // mean tokens of a request
	noise          float64                    // standard deviation of a minute's rate, as a share
	cv             float64                    // of the time between two requests
}

// Loads returns the built-in loads. They are our own, and no recording.
func Loads() []Load {
	return []Load{
		{
			Name: "morning", About: "People start to work: the load triples within the hour.",
			start: 8, rate: working, prompt: 900, output: 220, noise: 0.06, cv: 1.2,
		},
		{
			Name: "lunch", About: "The load falls at noon, and comes back within ten minutes.",
			start: 12, rate: lunch, prompt: 1100, output: 180, noise: 0.05, cv: 1.2,
		},
		{
			Name: "evening", About: "People go home: the load falls by two thirds, and requests come in bursts.",
			start: 18, rate: working, prompt: 700, output: 300, noise: 0.1, cv: 2,
		},
	}
}

// LoadNamed returns a built-in load.
func LoadNamed(name string) (Load, error) {
	all := Loads()
	i := slices.IndexFunc(all, func(l Load) bool { return l.Name == name })
	if i < 0 {
		names := make([]string, len(all))
		for k := range all {
			names[k] = all[k].Name
		}
		return Load{}, fmt.Errorf("no load %q; there are %s", name, strings.Join(names, ", "))
	}
	return all[i], nil
}

// working is a working day: it begins after eight, and ends in the evening.
func working(hour float64) float64 {
	return 0.25 + 0.75*(between(8.1, 8.9, hour)-between(17, 20, hour))
}

// lunch is a working day with a break at noon.
func lunch(hour float64) float64 {
	return working(hour) * (1 - 0.55*(between(12, 12.25, hour)-between(12.65, 12.8, hour)))
}

// between rises smoothly from 0 to 1 between two hours.
func between(from, to, hour float64) float64 {
	x := min(max((hour-from)/(to-from), 0), 1)
	return x * x * (3 - 2*x)
}

// dayMinutes and hourMinutes are the minutes before the hour that is shown, and its own.
const (
	dayMinutes  = 24 * 60
	hourMinutes = 60
)

// trace draws the load: a day, and the hour.
func (l *Load) trace(seed uint64) (*trace.Trace, error) {
	rng := rand.New(rand.NewPCG(seed, 0xdeb0))
	var b strings.Builder
	b.WriteString("t_s,rate_rps,iat_cv_rate_weighted,prompt_tokens_mean,output_tokens_mean\n")
	drift := 0.0
	for i := range dayMinutes + hourMinutes {
		hour := math.Mod(l.start+float64(i)/60, 24)
		drift = 0.8*drift + 0.6*rng.NormFloat64() // of standard deviation 1
		// The factor is any: the load is scaled to its peak.
		fmt.Fprintf(&b, "%d,%.4f,%g,%.0f,%.0f\n", i*60, 10*l.rate(hour)*math.Exp(l.noise*drift), l.cv, l.prompt, l.output)
	}
	return trace.Read("the load "+l.Name, strings.NewReader(b.String()))
}
