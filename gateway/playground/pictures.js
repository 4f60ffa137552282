// Pictures as data: URIs that fit into a request and into the browser's storage.

const LONGEST_SIDE = 1280; // pixels; larger pictures are reduced before they are sent and stored
const KEPT_AS_IT_IS = 300_000; // bytes
const LARGEST = 20_000_000; // bytes of a file that can't be reduced here; the server's default limit

export async function pictureOf(file) {
  // What the browser can't read is sent as it is: the server knows more formats, and says what is wrong.
  const image = await createImageBitmap(file).catch(() => null);
  const scale = image ? LONGEST_SIDE / Math.max(image.width, image.height) : 1;
  if (!image && file.size > LARGEST) {
    throw new RangeError(`${file.name}: ${(file.size / 1e6).toFixed(0)} MB are over the limit of ${LARGEST / 1e6} MB.`);
  }
  if (!image || (scale >= 1 && file.size <= KEPT_AS_IT_IS)) return dataUrl(file);
  const canvas = new OffscreenCanvas(Math.ceil(image.width * Math.min(scale, 1)), Math.ceil(image.height * Math.min(scale, 1)));
  const context = canvas.getContext("2d");
  context.fillStyle = "white"; // JPEG knows no transparency
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(image, 0, 0, canvas.width, canvas.height);
  return dataUrl(await canvas.convertToBlob({ type: "image/jpeg", quality: 0.9 }));
}

function dataUrl(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(blob);
  });
}
