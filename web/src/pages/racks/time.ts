/** Virtual seconds since a simulation began, as a clock: 3661.5 → "1:01:01.500". */
export function virtual(seconds: number): string {
  const whole = Math.floor(seconds + 1e-9);
  const rest = Math.round((seconds - whole) * 1000);
  const two = (n: number): string => String(n).padStart(2, "0");
  const days = Math.floor(whole / 86400);
  const clock = `${Math.floor((whole % 86400) / 3600)}:${two(Math.floor((whole % 3600) / 60))}:${two(whole % 60)}`;
  return `${days ? `${days} d ` : ""}${clock}${rest ? `.${String(rest).padStart(3, "0")}` : ""}`;
}
