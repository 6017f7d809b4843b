package libvirt

// agentPort adds the port for the agent in a guest, if it needs one, unless the guest has it. A
// controller for it is not needed: libvirt adds one.
func (w *writer) agentPort() error {
	if !w.placement.HasAgent() {
		return nil
	}
	devices := w.root.child("devices")
	for _, c := range devices.all("channel") {
		if t := c.child("target"); t.attr("type") == "virtio" && t.attr("name") == GuestPort {
			return nil
		}
	}
	port := agentChannel()
	if devices == nil {
		w.insertAfter(w.root.children[len(w.root.children)-1], tag{name: "devices", children: []tag{port}})
		return nil
	}
	w.setChildren(devices, func(*element) bool { return false }, []tag{port})
	return nil
}

// agentChannel is a socket whose path libvirt chooses.
func agentChannel() tag {
	return tag{name: "channel", attrs: []pair{{"type", "unix"}}, children: []tag{
		{name: "target", attrs: []pair{{"type", "virtio"}, {"name", GuestPort}}},
	}}
}
