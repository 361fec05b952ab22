// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"fmt"
	"strings"

	"github.com/gpupilot/gpupilot/internal/scale"
)

// State is the demo at one second of the replay. Times are seconds since its start, unless
// noted.
type State struct {
	Load        string       `json:"load"`
	About       string       `json:"about"`
	Start       int          `json:"start"` // of the hour, in seconds of the day
	Second      int          `json:"second"`
	Seconds     int          `json:"seconds"`
	Done        bool         `json:"done"`
	Objective   float64      `json:"objectivePercent"`
	Price       float64      `json:"usdPerGPUHour,omitempty"` // 0: not known
	Need        float64      `json:"need"`                    // replicas that the load needs
	Contestants []Contestant `json:"contestants"`
	Points      []Point      `json:"points"`
	Changes     []Change     `json:"changes"` // of GPUPilot's replicas, oldest first
	Steps       []string     `json:"steps"`   // of GPUPilot's last decision
	Object      string       `json:"object"`  // the GPUAutoscaler as YAML
}

// Contestant is one autoscaler until now.
type Contestant struct {
	Name          string   `json:"name"`
	How           string   `json:"how"`
	Replicas      int      `json:"replicas"`
	Serving       int      `json:"serving"`
	Starting      int      `json:"starting"`
	Ended         int      `json:"ended"`  // requests
	Missed        int      `json:"missed"` // of them, over a limit or given up
	MissedPercent float64  `json:"missedPercent"`
	Kept          bool     `json:"kept"` // the objective, until now
	GPUHours      float64  `json:"gpuHours"`
	Cost          *float64 `json:"usd,omitempty"` // nil: the GPU has no price
}

// Point is a moment of the chart. Its lists are in the order of the contestants.
type Point struct {
	Second   int       `json:"second"`
	Need     float64   `json:"need"`
	Replicas []int     `json:"replicas"`
	Serving  []int     `json:"serving"`
	Missed   []float64 `json:"missedPercent"` // of the requests that have ended
}

// Change is a decision of GPUPilot that changed the replicas.
type Change struct {
	Second   int      `json:"second"`
	From     int32    `json:"from"`
	To       int32    `json:"to"`
	Sentence string   `json:"sentence"` // of the step that decided
	Steps    []string `json:"steps"`
}

func changeOf(second int, d *scale.Decision) Change {
	c := Change{Second: second, From: d.Current, To: d.Replicas}
	for _, s := range d.Steps {
		if c.Steps = append(c.Steps, string(s.Rule)+": "+s.Sentence()); s.Before != s.After && s.After == d.Replicas || c.Sentence == "" {
			c.Sentence = s.Sentence()
		}
	}
	return c
}

// Clock returns the time of day of a second, such as 08:05.
func (s *State) Clock(second int) string {
	at := (s.Start + second) / 60
	return fmt.Sprintf("%02d:%02d", at/60%24, at%60)
}

// Line is the state in one line of a terminal.
func (s *State) Line() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s   %4.1f", s.Clock(s.Second), s.Need)
	for i := range s.Contestants {
		c := &s.Contestants[i]
		fmt.Fprintf(&b, "   %*s", max(len(c.Name), columnWidth), fmt.Sprintf("%8d %6.2f %%", c.Replicas, c.MissedPercent))
	}
	return b.String()
}

// columnWidth is the least width of a contestant's two numbers in a line.
const columnWidth = len("replicas   missed")

// Head is the two lines above the lines of a demo.
func (s *State) Head() string {
	var names, columns strings.Builder
	names.WriteString("           ")
	columns.WriteString("time   load")
	for i := range s.Contestants {
		name := s.Contestants[i].Name
		width := max(len(name), columnWidth)
		fmt.Fprintf(&names, "   %*s", width, name)
		fmt.Fprintf(&columns, "   %*s", width, "replicas   missed")
	}
	return names.String() + "\n" + columns.String()
}
