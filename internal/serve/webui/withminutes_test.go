// SPDX-License-Identifier: Apache-2.0

package webui

import (
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/autoscaler/aspect"
	"github.com/gpupilot/gpupilot/internal/autoscaler/controller"
	"github.com/gpupilot/gpupilot/internal/window/history"
	"github.com/gpupilot/gpupilot/internal/window/trust"
	"github.com/gpupilot/gpupilot/internal/window/view"
)

func TestMinutesOfThePage(t *testing.T) {
	now := time.Now().Truncate(time.Minute)
	chat := history.Workload{Namespace: "llm", Kind: "GPUAutoscaler", Name: "chat"}
	s := WithMinutes{controller.New(controller.Config{}, controller.Deps{Deps: aspect.Deps{Devices: trust.NewDevices(nil)}}), history.New(history.Config{})}
	if err := s.Store.Append(chat, now.Add(-time.Minute), []history.Value{history.Reading("gpupilot_autoscaler_gpus", 3)}); err != nil {
		t.Fatal(err)
	}
	q := &view.MinuteQuery{Kind: history.KindAutoscaler, From: now.Add(-time.Hour), To: now, Step: time.Minute}
	if m, ok, err := s.Minutes(chat.Namespace, chat.Name, q); !ok || err != nil || len(m.Metrics) != 1 {
		t.Errorf("a deleted workload: %+v, %v, %v", m, ok, err)
	}
	if m, ok, err := s.Minutes(chat.Namespace, "other", q); ok || err != nil {
		t.Errorf("an unknown workload: %+v, %v, %v", m, ok, err)
	}
}
